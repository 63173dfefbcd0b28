"""A student trained on Multi30k, its Marian files, and the engines that it is compared in."""
