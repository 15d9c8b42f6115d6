"""The subcommands of `jaxleak`, each in a module or package of its own."""
