"""``python -m kr_kfp`` is ``kr-kfp``."""

from kr_kfp.cli.main import main

main()
