"""Data with boxes: annotations of COCO, Pascal VOC and YOLO, and the augmentation of images with their boxes."""
