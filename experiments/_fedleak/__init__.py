"""FedLeak's tables, figures and demonstration."""
