"""The capsule explorer: a page to draw on, and the API behind it. Needs the extra `serve`."""
