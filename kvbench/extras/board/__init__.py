"""The board: methods of several results folders ranked at equal measured bytes."""
