"""Operations that take most of the time: a PyTorch reference for each, and faster ones (`model.kernels`)."""
