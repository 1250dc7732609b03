"""python -m ibinn.cli"""

from ibinn.cli import main

main()
