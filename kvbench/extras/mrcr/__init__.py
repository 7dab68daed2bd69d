"""MRCR: one of several equal requests in a long conversation."""
