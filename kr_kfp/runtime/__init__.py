"""What runs in pods: bootstrap, launcher, host runner and executor."""
