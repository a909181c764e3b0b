"""``python -m convlab.site``"""

import sys

from convlab.site.build import main

if __name__ == "__main__":
    sys.exit(main())
