"""Brute-force twins of the kernels, under the same names: slow, short, plainly right."""

from collections import Counter
from itertools import pairwise

import numpy as np

# ---------------------------------------------------------------------------------------------------
# Order of codes
# ---------------------------------------------------------------------------------------------------


def pack_words(codes, order, first, last):
    """Bytes first..last of each code as one big-endian number."""
    return [int.from_bytes(bytes(codes[row, first:last]), "big") for row in order]


def digit_counts(keys, digits=6, bits=11):
    counts = np.zeros((digits, 1 << bits), np.int64)
    for key in keys:
        for digit in range(digits):
            counts[digit, (int(key) >> (bits * digit)) % (1 << bits)] += 1
    return counts


def radix_pass(keys, order, digit, bits=11):
    """A stable sort by one digit."""
    rows = sorted(range(len(keys)), key=lambda i: (int(keys[i]) >> (bits * digit)) % (1 << bits))
    return [keys[i] for i in rows], [order[i] for i in rows]


def sort_runs(codes, order):
    """Rows in stable code order."""
    return sorted(order, key=lambda row: (bytes(codes[row]), row))


def gather_rows(codes, order):
    return np.array([codes[row] for row in order])


def sort_codes(codes, ids):
    rows = sorted((bytes(code), int(number)) for code, number in zip(codes, ids, strict=True))
    return [code for code, _ in rows], [number for _, number in rows]


def order_equal_codes(codes, ids):
    """Ids of codes that are sorted already, each run of equal codes by id."""
    return sort_codes(codes, ids)[1]


def lower_bounds(codes, ids, split_codes, split_ids):
    rows = [(bytes(code), int(number)) for code, number in zip(codes, ids, strict=True)]
    splits = [(bytes(code), int(number)) for code, number in zip(split_codes, split_ids, strict=True)]
    return [sum(row < split for row in rows) for split in splits]


def shared_rows(codes, ranks, firsts, lasts, sizes):
    """Rows before (after) each cut that begin with so many bytes of the first (last) code."""

    def count(rows, code):
        return [sum(bytes(row[:size]) == bytes(code[:size]) for row in rows) for size in sizes]

    before = [count(codes[:rank], code) for rank, code in zip(ranks, firsts, strict=True)]
    return before, [count(codes[rank:], code) for rank, code in zip(ranks, lasts, strict=True)]


# ---------------------------------------------------------------------------------------------------
# A-Tree
# ---------------------------------------------------------------------------------------------------


def labels_of(code, layout):
    """Labels of one code as a tuple of integers."""
    labels = [int(byte) for byte in code]
    return (labels[0] * 256 + labels[1], *labels[2:]) if layout.wide else tuple(labels)


def common_labels(codes, layout):
    """Labels each code shares with the one before it, from the second on."""
    rows = [labels_of(code, layout) for code in codes]
    return [
        next((level for level in range(layout.levels) if a[level] != b[level]), layout.levels)
        for a, b in pairwise(rows)
    ]


def hang_levels(codes, layout, bucket, direct_leaves):
    """Level of the node each code is a leaf of, by counting every prefix."""
    rows = [labels_of(code, layout) for code in codes]
    counts = Counter(row[:level] for row in rows for level in range(layout.levels + 1))

    def is_node(row, level):
        if level <= 1:
            return True
        return all(counts[row[:m]] > bucket for m in range(1, level)) and counts[row[:level]] > direct_leaves

    return [max(level for level in range(layout.levels + 1) if is_node(row, level)) for row in rows]


def level_counts(codes, layout, bucket, direct_leaves):
    """Nodes and leaves of each level of the whole tree."""
    hang = hang_levels(codes, layout, bucket, direct_leaves)
    rows = [labels_of(code, layout) for code in codes]
    nodes = {row[:m] for row, level in zip(rows, hang, strict=True) for m in range(level + 1)}
    every = range(layout.levels + 1)
    return [sum(len(node) == m for node in nodes) for m in every], [hang.count(m) for m in every]


class Node:
    """A node of the tree as a tree: a prefix, children by label, leaves (code, id)."""

    def __init__(self, prefix):
        self.prefix, self.children, self.leaves = prefix, {}, []


def fill_partition(codes, ids, layout, bucket, direct_leaves):
    """The whole tree, as nodes: levels[m] lists those of level m in code order."""
    order = sorted(range(len(codes)), key=lambda i: (bytes(codes[i]), int(ids[i])))
    hang = hang_levels(codes, layout, bucket, direct_leaves)
    root = Node(())
    for i in order:
        node, row = root, labels_of(codes[i], layout)
        for level in range(hang[i]):
            node = node.children.setdefault(row[level], Node(row[: level + 1]))
        node.leaves.append((row, int(ids[i])))
    levels = [[root]]
    for _ in range(layout.levels):
        levels.append([child for node in levels[-1] for child in node.children.values()])
    return levels


def reconstruction(row, dictionaries):
    """Sum of the words of a prefix, in float32."""
    total = np.zeros(dictionaries.dimension, np.float32)
    for level, label in enumerate(row):
        total += dictionaries.part(level)[label]
    return total


def stored_norm(node, row, dictionaries, params, norm_ranges):
    """A leaf's squared norm as its record gives it back."""
    exact = np.sum(reconstruction(row, dictionaries) ** 2)
    if params.norm_bytes == 4:
        return exact
    base = np.sum(reconstruction(node.prefix, dictionaries) ** 2)
    low, high = norm_ranges[len(node.prefix)]
    last = 2 ** (8 * params.norm_bytes) - 1
    step = (high - low) / np.float32(last)
    number = np.clip(np.floor((exact - base - low) / step + np.float32(0.5)), 0, last) if step > 0 else 0
    return base + low + step * np.float32(number)


# ---------------------------------------------------------------------------------------------------
# Search
# ---------------------------------------------------------------------------------------------------


def multiply_columns(query, rows, start):
    return start + query @ rows


def query_bytes(query):
    unit = max(np.abs(query).max() / 127, 0) or 1
    return np.rint(query / unit).astype(np.int8), unit


def as_quads(differences):
    """Byte 4 (width · q + k) + j is of dimension 4 q + j of column k."""
    dimension, width = differences.shape
    order = [(4 * q + j, k) for q in range(dimension // 4) for k in range(width) for j in range(4)]
    return [128 + int(differences[place]) for place in order]


def score_group(query, differences, offsets, base, step, unit):
    """The distances of the columns; none is below zero."""
    products = query.astype(np.int64) @ differences.astype(np.int64)
    return np.maximum(0, base + step * (offsets + unit * products))


def order_pairs(chosen, counts):
    """Pairs [row, i] of the chosen groups, by group."""
    pairs = [(chosen[row, i], row, i) for row, count in enumerate(counts) for i in range(count)]
    return [[row, i] for _, row, i in sorted(pairs)]


def nearest_nodes(query, words, groups, centre_scores, limit, probes):
    """The `limit` words nearest to a query in the `probes` nearest groups, and how many those hold."""
    scores = np.maximum(0, centre_scores + np.sum(query**2))
    near = np.argsort(scores, kind="stable")[:probes].tolist()
    inside = [number for number in range(len(words)) if groups[number] in near]
    inside.sort(key=lambda number: (np.sum((query - words[number]) ** 2), number))
    return inside[:limit], len(inside)


def probe_groups(queries, words, groups, centre_scores, limit, probes):
    """What `nearest_nodes` finds for each query."""
    return [
        nearest_nodes(query, words, groups, scores, limit, probes)
        for query, scores in zip(queries, centre_scores, strict=True)
    ]


def distance_tables(queries, rows, start):
    return start + queries @ rows, (queries.astype(np.float64) ** 2).sum(axis=1)


def byte_tables(queries, columns, start):
    """start + q·w for the columns w of (d, n), of both rounded to bytes in a unit of each."""
    largest = np.abs(columns).max(axis=0)
    units = np.where(largest > 0, largest, 1).astype(np.float32) / 127
    words = np.rint(columns / units)
    tables = []
    for query in queries:
        values, unit = query_bytes(query)
        tables.append(start + np.float32(unit) * units * (values.astype(np.float64) @ words))
    return np.array(tables, np.float32), (queries.astype(np.float64) ** 2).sum(axis=1)


def rank_of(distance):
    """Bits of a float32 that is not negative."""
    return int(np.float32(max(distance, 0)).view(np.int32))


def distance_of(rank):
    return np.int32(rank).view(np.float32)


def rank_bound(ranks, keep):
    """The lowest bound that `keep` ranks do not exceed."""
    return sorted(ranks)[keep - 1]


def copy_best(source, count):
    return [row[:count].copy() for row in source]


def sort_numbers(numbers, names):
    """Numbers in the order of their names, or their own."""
    return sorted(numbers.tolist(), key=lambda number: int(names[number]) if len(names) else number)


def sort_best(ranks, numbers):
    return sorted(zip(ranks, numbers, strict=True))


def cut_best(ranks, numbers, keep):
    return sort_best(ranks, numbers)[:keep]


def add_best(entries, keep):
    """What is left of entries (rank, number) added one after another."""
    return sorted(entries)[:keep]


def leaf_values(records, places, size, norm_bytes, bases, step, columns):
    """Distances of leaves whose records begin at `places`, one byte at a time."""
    values = []
    for place, base in zip(places, bases, strict=True):
        record = bytes(records[place : place + size])
        norm, suffix = record[:norm_bytes], record[norm_bytes:]
        number = int.from_bytes(norm, "little")
        exact = np.frombuffer(norm, np.float32)[0] if norm_bytes == 4 else step * number
        values.append(base + exact + sum(columns[256 * j + label] for j, label in enumerate(suffix)))
    return values


def passing(values, bound):
    return [place for place, value in enumerate(values) if value <= bound]


def sieve_leaves(records, rows, size, tables, limit):
    """Which records have byte sums within the limit."""
    sums = [
        sum(int(tables[j, byte]) for j, byte in enumerate(record)) for record in records.reshape(-1, size)
    ]
    return [row for row, total in enumerate(sums[:rows]) if min(total, 255) <= limit]


def list_set_bits(masks, rows):
    """Numbers of the bits that are set."""
    return [row for row in range(rows) if int(masks[row // 64]) >> row % 64 & 1]


def reset_sieve():
    """What is known before any node of a level: nothing."""
    return {"lowest": 0, "largest": np.inf, "scale": 0, "nearest": np.inf}


def fit_sieve(columns, norm_bytes, suffix, step, room, fitted):
    """Byte tables of a record, the sum of their least entries, and their scale, in float64."""
    values = [step * 256.0**byte * np.arange(256) for byte in range(norm_bytes)]
    values += list(columns[: 256 * suffix].astype(np.float64).reshape(suffix, 256))
    lowest = sum(table.min() for table in values)
    scale = fitted / (room - lowest)
    return [np.minimum(np.floor((table - table.min()) * scale), 255) for table in values], lowest, scale


def sieve_limit(lowest, scale, base, bound):
    """The sum of a leaf at the bound, and one more for rounding; -1 when no leaf can be within it."""
    room = bound - base - lowest
    return room * scale + 1 if room >= 0 else -1


def is_allowed(within, number):
    bits, place = np.unpackbits(within.bits, bitorder="little"), int(within.first) + number
    return bool(bits[place]) if place < len(bits) else False


def allowed_leaves(ids, within, first, room):
    """Places of allowed ids from `first` on, at most `room`, and where the next would be looked for."""
    places = [place for place in range(first, len(ids)) if is_allowed(within, int(ids[place]))]
    return (len(ids), places) if len(places) < room else (places[room - 1] + 1, places[:room])


def merge_answers(ids, distances, wanted):
    """For each query the (distance, id) of its nearest in all lists."""
    return [
        sorted(
            (float(near), int(number))
            for part, nears in zip(ids[:, i], distances[:, i], strict=True)
            for number, near in zip(part, nears, strict=True)
            if number >= 0
        )[:wanted]
        for i in range(ids.shape[1])
    ]


def scan_nodes(nodes, distance, allowed):
    """Distances and ids of all leaves of nodes that may be answers."""
    leaves = [(node, row, number) for node in nodes for row, number in node.leaves]
    within = [leaf for leaf in leaves if allowed is None or leaf[2] in allowed]
    return [(distance(node, row), number) for node, row, number in within]


def least_distances(distances, columns):
    """The least of every so many distances, ascending."""
    return np.sort([distances[column::columns].min() for column in range(columns)])


def pruning_bound(distances, pruning_ratio, columns):
    """Two distances between which the bound of a pruning ratio lies."""
    if len(distances) < columns or np.isinf(pruning_ratio):
        return np.inf, np.inf
    tenth, eleventh = least_distances(distances, columns)[9:11]
    return np.float32(pruning_ratio) * tenth, np.float32(pruning_ratio) * eleventh


def cut_beyond(distances, pruning_ratio):
    """Which distances are within a multiple of the mean of the ten nearest, and of those as near as these."""
    if len(distances) == 0 or np.isinf(pruning_ratio):
        return np.ones(len(distances), bool)
    near = distances[distances <= np.sort(distances)[:10][-1]]
    return distances <= pruning_ratio * near.mean()


def search_tree(
    levels, query, k, limits, dictionaries, params, norm_ranges, allowed=None, pruning_ratio=np.inf
):
    """Search over the nodes of `fill_partition`: answers (distance, id), nodes scored, leaves scored."""
    query = np.asarray(query, np.float32)

    def product(row):
        return np.float32(-2) * query @ reconstruction(row, dictionaries)

    def score(node):
        vector = reconstruction(node.prefix, dictionaries)
        return max(0, np.sum((query - vector) ** 2))

    def distance(node, row):
        norm = stored_norm(node, row, dictionaries, params, norm_ranges)
        return max(0, np.sum(query**2) + norm + product(row))

    numbers = {node.prefix: number for level in levels for number, node in enumerate(level)}
    found, nodes, leaves = [], 0, 0
    candidates = levels[1]
    for limit in limits:
        nodes += len(candidates)
        kept = sorted(candidates, key=lambda node: (score(node), numbers[node.prefix]))
        kept = kept[:limit] if limit else kept
        if candidates is levels[1]:
            near = cut_beyond(np.array([score(node) for node in kept]), pruning_ratio)
            kept = [node for node, inside in zip(kept, near, strict=True) if inside]
        found += scan_nodes(kept, distance, allowed)
        leaves += sum(len(node.leaves) for node in kept)
        candidates = [child for node in kept for child in node.children.values()]
    return sorted(found)[:k], nodes, leaves


def merge_rows(queries, rows, k):
    """The k nearest rows of each query as (distance, row number), in exact integers or float64."""
    wide = np.int64 if queries.dtype.kind in "ui" and rows.dtype.kind in "ui" else np.float64
    answers = []
    for query in queries.astype(wide):
        distances = ((rows.astype(wide) - query) ** 2).sum(axis=1)
        answers.append(sorted((distance, number) for number, distance in enumerate(distances.tolist()))[:k])
    return answers


def metric_distance(query, rows, metric):
    """-q·x or 1 - cos of a query with each row, in float64."""
    query, rows = query.astype(np.float64), rows.astype(np.float64)
    if metric == "ip":
        return -(rows @ query)
    return 1 - rows @ query / np.sqrt((rows**2).sum(axis=1) * (query**2).sum())


def exact_distance(query, row, kind):
    """Squared distance, -q·x or 1 - cos, as `kind` is 0, 1 or 2."""
    if kind:
        return float(metric_distance(query, row[None], ("ip", "cosine")[kind - 1])[0])
    return float(merge_rows(query[None], row[None], 1)[0][0][0])


def replace_farthest(pairs, distance, number):
    """The (distance, id) pairs, ascending, with the largest replaced."""
    return sorted([*sorted(pairs)[:-1], (distance, number)])


def scale_to_unit(rows):
    return rows.astype(np.float64) / np.sqrt((rows.astype(np.float64) ** 2).sum(axis=1, keepdims=True))


def rank_candidates(queries, vectors, candidates, k):
    """The k nearest of each query's candidates as (distance, id); ids of no row are left out."""
    answers = []
    for query, numbers in zip(queries, candidates.tolist(), strict=True):
        known = [number for number in numbers if 0 <= number < len(vectors)]
        ranked = merge_rows(query[None], vectors[known], len(known))[0] if known else []
        answers.append(sorted((distance, known[place]) for distance, place in ranked)[:k])
    return answers


def touch_rows(vectors, rows, page):
    """First value of each page of the rows, and their last value, added up."""
    known = [vectors[row] for row in rows if 0 <= row < len(vectors)]
    return sum(float(row[::page].astype(np.float64).sum() + row[-1]) for row in known)


def mark_ids(ids, limit, seen):
    """Place of the first id that is too large or that came before, or -1; the bits before it are set."""
    for place, number in enumerate(ids.tolist()):
        if number >= limit or seen[number // 8] >> (number % 8) & 1:
            return place
        seen[number // 8] |= 1 << (number % 8)
    return -1


def suffixes(tree, level, node, norm_bytes, size):
    """Place, suffix and id of each leaf of a node."""
    for leaf in range(int(tree.leaf_start[node]), int(tree.leaf_start[node + 1])):
        place = int(tree.record_start[level]) + (leaf - int(tree.level_leaf[level])) * size
        yield leaf, tree.records[place + norm_bytes : place + size].tobytes(), int(tree.ids[leaf])


def disordered_leaf(tree, level, first, stop, norm_bytes, size):
    for node in range(first, stop):
        below = set(tree.labels[int(tree.child_start[node]) : int(tree.child_start[node + 1])].tolist())
        last = (b"", 0)
        for leaf, suffix, number in suffixes(tree, level, node, norm_bytes, size):
            if (suffix, number) < last or (suffix and suffix[0] in below):
                return leaf
            last = (suffix, number)
    return -1


def mixed(number):
    """MurmurHash3's finalizer."""
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        number = (number ^ number >> 33) * factor % 2**64
    return number ^ number >> 33


def code_hash(number, code):
    for octet in code:
        number = (mixed(number) + octet) % 2**64
    return mixed(number)


def add_leaf_sums(tree, level, first, prefixes, norm_bytes, size, shard_rows, sums):
    for node, prefix in enumerate(prefixes, start=first):
        for _, suffix, number in suffixes(tree, level, node, norm_bytes, size):
            if number // shard_rows < len(sums):
                added = int(sums[number // shard_rows]) + code_hash(number, prefix.tobytes() + suffix)
                sums[number // shard_rows] = added % 2**64


def code_sum(codes, first_id, seen):
    rows = [row for row in range(len(codes)) if seen[(first_id + row) // 8] >> ((first_id + row) % 8) & 1]
    return sum(code_hash(first_id + row, codes[row].tobytes()) for row in rows) % 2**64


# ---------------------------------------------------------------------------------------------------
# Distances, k-means, least squares
# ---------------------------------------------------------------------------------------------------


def multiply_rows(rows, words, start):
    """start[k] + rows[r] · words[k], words as plain (K, d)."""
    return start + rows.astype(np.float64) @ words.T.astype(np.float64)


def copy_rows(rows, first, height):
    out = np.zeros((height, rows.shape[1]), np.float32)
    count = min(height, len(rows) - first)
    out[:count] = rows[first : first + count]
    return count, out


def squared_lengths(rows):
    return (rows.astype(np.float64) ** 2).sum(axis=1)


def merge_nearest(scores, first, best, labels):
    """Labels and best scores after the words first, first + 1, ... were looked at too."""
    found, least = scores.argmin(axis=1), scores.min(axis=1)
    better = least < best
    return np.where(better, least, best), np.where(better, first + found, labels)


def nearest_groups(scores, probes):
    return np.argsort(scores, axis=1, kind="stable")[:, :probes]


def scan_group(rows, words):
    """Nearest words, the lowest of equals, and ‖c‖² − 2 x·c."""
    rows, words = rows.astype(np.float64), words.astype(np.float64)
    scores = (words**2).sum(axis=1) - 2 * rows @ words.T
    return scores.argmin(axis=1), scores.min(axis=1)


def add_rows(rows, labels, words):
    sums = np.array([rows[labels == k].sum(axis=0, dtype=np.float64) for k in range(words)])
    return sums, np.bincount(labels, minlength=words)


def one_hot(codes, sizes):
    return np.concatenate([np.eye(size)[codes[:, m]] for m, size in enumerate(sizes)], axis=1)


def count_pairs(codes, sizes):
    hot = one_hot(codes, sizes)
    return np.tril(hot.T @ hot)


def add_by_word(rows, codes, sizes, start, stop):
    return one_hot(codes, sizes).T @ rows[:, start:stop].astype(np.float64)


def decode_rows(codes, sizes, words):
    return one_hot(codes, sizes) @ words.astype(np.float64)


def norm_growth(rows, codes, first, words):
    sums = rows + words.astype(np.float64)[first + codes].sum(axis=1)
    return (sums**2).sum(axis=1) - (rows.astype(np.float64) ** 2).sum(axis=1)


def squared_errors(rows, decoded):
    return ((rows.astype(np.float64) - decoded) ** 2).sum(axis=1)


# ---------------------------------------------------------------------------------------------------
# Multi-path encoding
# ---------------------------------------------------------------------------------------------------


def selection_limit(minima, keep, none):
    """The exact limit; the kernel's may be a little higher."""
    return sorted(minima)[keep - 1] if len(minima) >= keep else none


def select_paths(scores, keep):
    """The `keep` best (score, path, word) of scores (paths, words)."""
    triples = [(int(score), path, word) for path, row in enumerate(scores) for word, score in enumerate(row)]
    return sorted(triples)[:keep]


def short_limit(scores, keep):
    """The exact limit; the kernel's may be a little higher."""
    return sorted(scores)[keep - 1]


def encode_row(own, cross, beam):
    """Beam search in integers: own[m] (K_m,), cross[m][j] (K_j, K_m)."""
    paths = [(0, ())]
    for m, terms in enumerate(own):
        wide = [table[:, : len(terms)].astype(np.int64) for table in cross[m]]
        own_terms = terms.astype(np.int64)
        scores = [base + own_terms + sum(wide[j][i] for j, i in enumerate(path)) for base, path in paths]
        kept = select_paths(scores, beam if m < len(own) - 1 else 1)
        paths = [(score, (*paths[path][1], word)) for score, path, word in kept]
    return paths[0][1]


encode_short_rows = encode_row
"""Dictionaries of few words are encoded in another way, to the same codes."""


def encode_rows(rows, dictionaries, beam):
    """Beam search in float64 over explicit residues; dictionaries is a list of (K_m, d)."""
    codes = []
    for row in rows.astype(np.float64):
        paths = [((), row)]
        for words in dictionaries:
            longer = [
                (float(((rest - word) ** 2).sum()), (*code, k), rest - word)
                for code, rest in paths
                for k, word in enumerate(words.astype(np.float64))
            ]
            longer.sort(key=lambda path: path[0])
            paths = [(code, rest) for _, code, rest in longer[:beam]]
        codes.append(paths[0][0])
    return np.array(codes)


# ---------------------------------------------------------------------------------------------------
# Generated rows
# ---------------------------------------------------------------------------------------------------


def draw(key, number):
    """Draw `number` of the stream `key`: splitmix64."""
    value = (key + (number + 1) * 0x9E3779B97F4A7C15) % 2**64
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB % 2**64
    return value ^ (value >> 31)


def node_offset(node):
    octets = b"".join(draw(node, j).to_bytes(8, "little") for j in range(16))
    return [2 * octet - 255 for octet in octets]


def generate_row(model, seed, row):
    """One row, in integers up to the last step."""
    purpose = {name: (i + 1) << 32 for i, name in enumerate(["anchor", "child", "step", "own", "factor"])}
    key = draw(seed, row)
    anchor = sum(int(share) <= draw(key, purpose["anchor"]) >> 32 for share in model.shares)
    place = draw(key, purpose["step"])
    other = model.neighbours[anchor][place >> 59]
    step = (place >> 16) % 2**16 * model.max_step >> 16
    node = draw(draw(seed, -1), anchor)
    scale = int(model.spreads[anchor])
    sums = [0] * 128
    for level, weight in enumerate(model.weights.tolist()):
        if level < len(model.weights) - 1:
            child = sum(int(share) <= draw(key, level) >> 32 for share in model.children)
            node = draw(node, purpose["child"] + child)
        else:
            node = draw(key, purpose["own"])
        sums = [old + (weight * scale >> 10) * new for old, new in zip(sums, node_offset(node), strict=True)]
        scale = scale * int(model.factors[draw(node, purpose["factor"]) >> 56]) >> 10
    z = [max(-1279, min(1279, round(value / 1024))) for value in sums]
    values = []
    for j in range(128):
        latent = (256 - step) * int(model.anchors[anchor, j]) + step * int(model.anchors[other, j])
        latent += sum(z[i] * int(model.basis[i, j]) for i in range(128))
        values.append(int(model.values[j, max(0, min(511, (latent >> 12) + 256))]))
    norm = max(1, sum(value * value for value in values)) ** 0.5
    return [min(255, round(value * (512 / norm))) for value in values]


def generate_rows(model, seed, rows):
    return np.array([generate_row(model, int(seed), int(row)) for row in rows], np.uint8).reshape(-1, 128)


# ---------------------------------------------------------------------------------------------------
# Information
# ---------------------------------------------------------------------------------------------------


def count_labels_together(one, other, shape):
    pairs = Counter(zip(one.tolist(), other.tolist(), strict=True))
    return np.array([[pairs[i, j] for j in range(shape[1])] for i in range(shape[0])])


def node_ranges(starts, first, last):
    """Ranges of nodes that follow one another, cut to first..last; each ends where the next begins."""
    bounds = np.clip(np.asarray(starts, np.int64), first, last)
    return list(zip(bounds[:-1], np.maximum(bounds[:-1], bounds[1:]), strict=True))


def fit_planes(columns, norm_bytes, norm_step):
    """Integer tables (M, 16) and of a norm's halves (2, 16), the least entries, and the scale."""
    tables = np.asarray(columns, np.float32).reshape(-1, 16)
    lows = tables.min(axis=1)
    widest = (tables.max(axis=1) - lows).max(initial=np.float32(0))
    if norm_bytes:
        widest = max(widest, np.float32(norm_step) * np.float32(240) / np.float32(8))
    scale = np.float32(127) / widest if widest > 0 else np.float32(0)
    half = np.float32(0.5)
    weight = np.float32(norm_step) * scale / np.float32(8)
    halves = [np.floor(weight * (step * np.arange(16, dtype=np.float32)) + half) for step in (1, 16)]
    return np.floor((tables - lows[:, None]) * scale + half), np.array(halves), lows, scale


def scan_planes(labels, norms, fitted, rest):
    """Distances of leaves by the integer tables: labels (n, M), norms (n,) or None."""
    tables, halves, _, scale = fitted
    sums = tables[np.arange(labels.shape[1]), labels].sum(axis=1)
    if norms is not None:
        sums = sums + 8 * (halves[0][norms & 15] + halves[1][norms >> 4])
    unit = np.float32(1) / scale if scale > 0 else np.float32(0)
    return np.maximum(np.float32(rest) + unit * sums.astype(np.float32), 0)


def exact_distances(labels, norms, columns, norm_step, rest):
    """Distances of leaves by the tables themselves."""
    tables = np.asarray(columns, np.float64).reshape(-1, 16)
    sums = tables[np.arange(labels.shape[1]), labels].sum(axis=1)
    return rest + sums + (0 if norms is None else norm_step * norms.astype(np.float64))


def prefetch_planes():
    """Prefetching changes nothing."""


def search_planes(nodes, query, k, limit, ratio, columns, norm_step):
    """The k nearest (distance, id) of leaves in planes, among those nearest by integer tables.

    nodes : of level 1: distance, rest without Σ l_m, ids, labels (n, M), norms (n,) or None
    """
    order = sorted(range(len(nodes)), key=lambda number: (nodes[number][0], number))[: limit or None]
    near = cut_beyond(np.array([nodes[number][0] for number in order]), ratio)
    kept = [nodes[number] for number, inside in zip(order, near, strict=True) if inside]
    found = []
    for _, rest, ids, labels, norms in kept:
        fitted = fit_planes(columns, norms is not None, norm_step)
        lowest = np.float32(0)
        for low in fitted[2]:
            lowest += low
        rough = scan_planes(labels, norms, fitted, np.float32(rest) + lowest)
        exact = exact_distances(labels, norms, columns, norm_step, rest)
        found += zip(rough.tolist(), ids.tolist(), exact.tolist(), strict=True)
    near = sorted(found)[: k + k // 4 + 16]
    return sorted((exact, number) for _, number, exact in near)[:k]
