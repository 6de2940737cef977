"""`tnctl check`: what a conf and a sample of its data come to, before anything is trained."""
