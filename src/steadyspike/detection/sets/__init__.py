"""Data sets with boxes; importing this registers them."""

from steadyspike.data.dataset_catalogue import Entry, Shape, register
from steadyspike.detection.sets import box_folders, coco, shapes

register("shapes", Entry(
    shapes.load, lambda p: "embedded", "coloured shapes with boxes, drawn by the library", Shape(3, 3, (96, 96)),
    task="detection",
))  # fmt: skip
register("coco", Entry(
    coco.load_coco, coco.find_coco, "COCO 2017, 80 classes of boxes", Shape(80, 3, (640, 640)), task="detection",
))  # fmt: skip
register("bccd", Entry(
    coco.load_bccd, coco.find_bccd, "blood cells with boxes, 320 x 240, 3 classes", Shape(3, 3, (256, 320)),
    task="detection",
))  # fmt: skip
register("voc", Entry(
    box_folders.load_voc, box_folders.find_voc, "Pascal VOC 2007 or 2012, 20 classes of boxes",
    Shape(20, 3, (320, 320)), task="detection",
))  # fmt: skip
register("box-folder", Entry(
    box_folders.load_folder, lambda p: None,
    "any images with boxes: data_dir with the annotations of COCO, Pascal VOC or YOLO",
    Shape(10, 3, (640, 640)),  # the number depends on the user's folder
    ("official", "random:SEED"), task="detection", own_folder=True,
))  # fmt: skip
