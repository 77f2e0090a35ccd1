// The potentials inside a surrogate's window, as the closed interval that the reference's own rounding gives.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

// Is abs(z) < half, or <= half, for z as the reference rounds it: M - V ("as") or M/V - 1?
template <class R>
struct Window {
    R v, half;
    bool absolute, closed;

    bool holds(R m) const {
        const R z = absolute ? m - v : m / v - 1;
        const R distance = std::fabs(z);
        return closed ? distance <= half : distance < half;
    }

    // The outermost potential inside, towards -inf or inf. Rounding is monotone, so the inside is an interval around V.
    R edge(bool upper) const {
        const R infinity = std::numeric_limits<R>::infinity(), outwards = upper ? infinity : -infinity;
        if (!holds(v)) return holds(0) ? outwards : std::numeric_limits<R>::quiet_NaN();  // V is 0 or not finite
        const R reach = absolute ? half : half * std::fabs(v);
        R m = upper ? v + reach : v - reach;
        for (int i = 0; i < NEAR && !holds(m); ++i) m = std::nextafter(m, v);
        for (int i = 0; i < NEAR && holds(m); ++i) {
            const R next = std::nextafter(m, outwards);
            if (!holds(next) || next == m) return m;
            m = next;
        }
        return bisect(outwards);
    }

private:
    static constexpr int NEAR = 4;
    using Order = int64_t;

    // Maps numbers to integers in the same order: -inf .. -0 = 0 .. inf.
    static Order rank(R value) {
        using Raw = typename std::conditional<sizeof(R) == 4, int32_t, int64_t>::type;
        Raw raw;
        std::memcpy(&raw, &value, sizeof(R));
        return raw >= 0 ? Order(raw) : Order(std::numeric_limits<Raw>::min()) - Order(raw);
    }
    static R number(Order rank) {
        using Raw = typename std::conditional<sizeof(R) == 4, int32_t, int64_t>::type;
        const Raw raw = rank >= 0 ? Raw(rank) : Raw(Order(std::numeric_limits<Raw>::min()) - rank);
        R value;
        std::memcpy(&value, &raw, sizeof(R));
        return value;
    }

    // If v + reach or v - reach, which are rounded, are more than NEAR numbers from the edge.
    R bisect(R outside) const {
        if (holds(outside)) return outside;
        Order in = rank(v), out = rank(outside);
        while (in + 1 < out || out + 1 < in) {
            const Order middle = in / 2 + out / 2 + (in % 2 + out % 2) / 2;
            (holds(number(middle)) ? in : out) = middle;
        }
        return number(in);
    }
};
