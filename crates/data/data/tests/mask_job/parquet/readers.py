"""Makes and reads Parquet files with pyarrow and DuckDB, readers that share no code with the jobs.

Usage: readers.py make FOLDER | check [BEFORE AFTER CHANGED,...]... | pruning FILE COLUMN...
"""

import json
import sys
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("mail", pa.string()),
        ("score", pa.float64()),
        ("tags", pa.list_(pa.string())),
        ("city", pa.string()),
        ("nothing", pa.null()),
    ]
)


def rows(first: int, count: int) -> pa.Table:
    numbers = range(first, first + count)
    columns = {
        "id": list(numbers),
        "mail": [f"person{number}@mail.test" if number % 5 else None for number in numbers],
        "score": [number / 4 for number in numbers],
        "tags": [[f"tag{number}"] * (number % 3) for number in numbers],
        "city": [["Bonn", "Kiel", "Ulm"][number % 3] for number in numbers],
        "nothing": [None] * count,
    }
    return pa.table(columns, schema=SCHEMA)


def make(folder: str) -> None:
    """Writes files with row groups of 0 rows, and one with many row groups."""
    for layout, counts in {"empty": [0], "first": [0, 7], "between": [5, 0, 6], "last": [9, 0], "all": [0, 0]}.items():
        for options, settings in {
            "usual": {},
            "plain": {"use_dictionary": False, "compression": "none", "write_statistics": False},
            "indexed": {"write_page_index": True, "data_page_version": "2.0", "compression": "zstd"},
        }.items():
            with pq.ParquetWriter(Path(folder) / f"{layout}_{options}.parquet", SCHEMA, **settings) as writer:
                first = 0
                for count in counts:
                    writer.write_table(rows(first, count))
                    first += count
    count = 2000
    groups = {
        "number": pa.array(range(count), pa.int32()),
        "single": pa.array([float(number) for number in range(count)], pa.float32()),
        "double": pa.array([number / 8 for number in range(count)], pa.float64()),
        "text": pa.array([f"{number:06}" for number in range(count)]),
        "time": pa.array(range(count), pa.timestamp("us")),
        "mail": pa.array([f"person{number}@mail.test" for number in range(count)]),
    }
    pq.write_table(pa.table(groups), Path(folder) / "groups.parquet", row_group_size=200, write_page_index=True)


def check_places(path: str) -> None:
    """Checks that the chunks of a file are inside of the file, and apart from each other."""
    file = pq.ParquetFile(path)
    ranges = []
    for group in range(file.metadata.num_row_groups):
        for column in range(file.metadata.num_columns):
            chunk = file.metadata.row_group(group).column(column)
            start = chunk.dictionary_page_offset if chunk.has_dictionary_page else chunk.data_page_offset
            assert start >= 4 and chunk.data_page_offset >= start, (path, group, column, chunk)
            assert chunk.num_values > 0 or not chunk.is_stats_set or chunk.statistics.num_values == 0
            ranges.append((start, start + chunk.total_compressed_size))
    ranges.sort()
    size = Path(path).stat().st_size
    assert all(one[1] <= other[0] for one, other in zip(ranges, ranges[1:] + [(size - 8, size)])), (path, ranges)


def check(*files: str) -> None:
    """Checks outputs: each is an input, an output, and the changed columns, separated by commas."""
    for before, after, changed in zip(files[::3], files[1::3], files[2::3]):
        check_rows(before, after, changed)


def check_rows(before: str, after: str, changed: str) -> None:
    """Checks that a file has the rows of another one, except for changed columns (`*`: all)."""
    check_places(after)
    one, other = pq.ParquetFile(before), pq.ParquetFile(after)
    assert one.metadata.num_row_groups == other.metadata.num_row_groups
    kept = [name for name in one.schema_arrow.names if changed != "*" and name not in changed.split(",")]
    for group in range(one.metadata.num_row_groups):
        old, new = one.read_row_group(group), other.read_row_group(group)
        assert old.num_rows == new.num_rows and old.column_names == new.column_names, (before, after, group)
        for name in kept:
            assert old[name].equals(new[name]), (before, after, group, name)
    select = ", ".join(f'"{name}"' for name in kept) or "count(*)"
    old, new = (duckdb.sql(f"SELECT {select} FROM read_parquet('{path}')").fetchall() for path in (before, after))
    assert old == new, (before, after)
    duckdb.sql(f"SELECT * FROM read_parquet('{after}')").fetchall()


def scanned(operator: dict) -> int:
    return operator.get("row_groups_scanned", 0) + sum(scanned(child) for child in operator.get("children", []))


def pruning(path: str, *columns: str) -> None:
    """Prints the number of row groups that each reader reads for the first rows by each column."""
    counts = {}
    for name in columns:
        limit = pq.ParquetFile(path).read_row_group(0, [name])[name][20]
        smaller = pa.dataset.field(name) < limit
        fragments = pa.dataset.dataset(path).get_fragments(smaller)
        by_arrow = sum(len(fragment.split_by_row_group(smaller)) for fragment in fragments)
        database = duckdb.connect()
        profile = Path(f"{path}.json")
        database.execute("PRAGMA enable_profiling = 'json'")
        database.execute(f"PRAGMA profiling_output = '{profile}'")
        database.execute(f"SELECT count(*) FROM read_parquet('{path}') WHERE {name} < ?", [limit.as_py()]).fetchall()
        database.close()
        by_duckdb = sum(scanned(operator) for operator in json.loads(profile.read_text())["operator"])
        counts[name] = [by_arrow, by_duckdb]
    print(json.dumps(counts))


{"make": make, "check": check, "pruning": pruning}[sys.argv[1]](*sys.argv[2:])
