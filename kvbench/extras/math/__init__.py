"""Problems of mathematics, answered at length and compared by value."""
