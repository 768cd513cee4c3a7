"""Boats, houses, faces and harbours: drawn shapes whose class is how their parts stand to each other.

Nothing is read from files. `scenes.draw_shapes` draws images with the pose of every part and whole, `sets` has frozen
test sets, and `render` draws parts at given poses. Positions, angles and scales mean the same as in
`torchcaps.models.base.Placement`; angles are counter-clockwise as an image is seen.
"""
