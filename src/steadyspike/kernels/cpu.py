from torch import Tensor


class CpuBackend:
    name = "cpu"

    def why_not(self, x: Tensor) -> str | None:
        return "the extension is not built"
