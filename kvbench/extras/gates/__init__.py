"""KVzap and Fast KVzip: gates that were trained for a model score its pairs."""
