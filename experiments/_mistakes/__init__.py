"""The study of mistaken inputs: its options, its clients, and the outcomes of the mistakes."""
