from torch import Tensor


class TritonBackend:
    name = "triton"

    def why_not(self, x: Tensor) -> str | None:
        return "triton is not installed"
