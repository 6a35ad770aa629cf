"""python -m jdpack.cli"""

from jdpack.cli import main

main()
