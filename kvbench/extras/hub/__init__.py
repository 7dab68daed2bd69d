"""Tables of your own or of the Hub as prompts."""
