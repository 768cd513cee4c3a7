"""The capsule explorer as a folder for any static host. Needs the extra `export`."""
