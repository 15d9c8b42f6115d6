"""What the subcommands of `jaxleak` do, one module or package each."""
