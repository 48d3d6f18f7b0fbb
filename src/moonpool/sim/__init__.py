"""The cluster simulator: engines and pool as models, the router's own code, a virtual clock."""
