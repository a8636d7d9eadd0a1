"""Object stores: what a volume that is a prefix in one is read and written by."""
