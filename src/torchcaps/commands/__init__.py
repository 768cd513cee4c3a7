"""The commands: parse, call, print. `torchcaps.cli` puts them together."""
