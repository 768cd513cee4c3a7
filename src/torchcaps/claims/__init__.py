"""Claims of the capsule literature, tested on capsule networks and CNNs: `torchcaps reproduce claims`."""
