"""The capsule explorer, a web page to draw on and the API behind it. Needs the extra `serve`."""
