"""One module per noun of the command line; `root` in the folder above lists them."""
