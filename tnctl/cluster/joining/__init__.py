"""How the processes of a cluster find, know and watch each other."""
