"""Networks that find boxes; importing this registers them."""

from steadyspike.detection.networks import ems_yolo

__all__ = ["ems_yolo"]
