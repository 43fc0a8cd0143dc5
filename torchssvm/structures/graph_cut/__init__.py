"""Binary labelings of graphs, decoded by minimum cuts."""
