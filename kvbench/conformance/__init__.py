"""What anyone can check a method against: golden files and properties that hold for every policy and score."""
