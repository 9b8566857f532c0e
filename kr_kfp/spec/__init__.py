"""The core: values in, dictionaries out. Nothing here reads a clock, a file, the network or randomness."""
