"""Detection: boxes, their assignment to cells, the loss, decoding, suppression and mAP."""

from steadyspike.detection.assignment import assign
from steadyspike.detection.boxes import complete_iou, pairwise_iou
from steadyspike.detection.decoding import decode
from steadyspike.detection.drawing import draw_boxes
from steadyspike.detection.loss import Gains, detection_loss
from steadyspike.detection.mean_ap import class_ap, mean_ap
from steadyspike.detection.nms import Detections, detections, suppress
from steadyspike.detection.yolo_ap import yolo_ap

__all__ = [
    "Detections",
    "Gains",
    "assign",
    "class_ap",
    "complete_iou",
    "decode",
    "detection_loss",
    "detections",
    "draw_boxes",
    "mean_ap",
    "pairwise_iou",
    "suppress",
    "yolo_ap",
]


def __dir__() -> list[str]:
    return sorted(__all__)
