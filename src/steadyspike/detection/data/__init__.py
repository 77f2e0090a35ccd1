"""Data with boxes: annotations of COCO, Pascal VOC and YOLO, and what happens to images and boxes together."""
