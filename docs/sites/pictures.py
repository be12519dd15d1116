#!/usr/bin/env python3
"""Takes the pictures of this folder out of a run of the offline web: for each site how it begins, and the
middle of its longest trajectory.

    furrow run deploy/web.toml && python3 docs/sites/pictures.py runs/web

Needs what tests/requirements.txt lists. The pictures are the recorded screenshots, reduced to 256 colours.
"""

import io
import pathlib
import sys

import duckdb
from PIL import Image

FOLDER = pathlib.Path(__file__).parent

# The host of a site's pages is <site>.<suite>.test.
STEPS = """
    SELECT regexp_extract(observation.url, '^https?://([a-z0-9]+)\\.', 1) AS site, trajectory_id, step,
           observation.screenshot.bytes AS picture, count(*) OVER (PARTITION BY trajectory_id) AS length
    FROM read_parquet('{run}/data/steps/*.parquet') WHERE suite = 'web'
"""


def chosen(run):
    """Yields (site, 'begins' or 'middle', the screenshot's bytes)."""
    for site, *pictures in duckdb.sql(f"""
        WITH steps AS ({STEPS.format(run=run)})
        SELECT site,
               first(picture ORDER BY length DESC, trajectory_id) FILTER (step = 0),
               first(picture ORDER BY length DESC, trajectory_id) FILTER (step = length * 2 // 3)
        FROM steps GROUP BY site ORDER BY site
    """).fetchall():
        yield site, "begins", pictures[0]
        yield site, "middle", pictures[1]


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    for site, when, picture in chosen(sys.argv[1]):
        path = FOLDER / f"{site}-{when}.png"
        image = Image.open(io.BytesIO(picture)).convert("RGB")
        image.quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)
        print(f"{path.name}: {image.width}x{image.height}, {path.stat().st_size // 1024} KB")


main()
