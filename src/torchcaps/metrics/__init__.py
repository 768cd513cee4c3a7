"""Figures of merit: classification, segmentation, similarity of images."""
