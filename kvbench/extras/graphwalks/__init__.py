"""GraphWalks: which nodes a walk through a long list of edges reaches."""
