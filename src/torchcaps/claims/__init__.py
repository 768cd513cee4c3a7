"""The claims of the capsule literature, measured on capsule networks and on CNNs: `torchcaps reproduce claims`."""
