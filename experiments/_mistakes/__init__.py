"""The study of mistaken inputs: its options, the mistakes, and what becomes of them."""
