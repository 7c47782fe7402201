"""Positions: order for words, rows and columns for pictures, latitude and longitude for the globe (S0.6)."""

from __future__ import annotations

import torch
from torch import Tensor

from sightline import plots
from sightline.backends import attention, reference
from sightline.lessons.page import Page
from sightline.positions import Grid, LatLon, Rotary, Sinusoidal, alibi
from sightline.steps import embed_words, explain

TITLE = "Positions: order and place"
SOURCES = ("S0.6",)
SENTENCE = "the dog bit the man"
WIDTH = 64
PLACE = (50.0, 175.0)  # a point of the globe's grid, near the date line


def lesson(page: Page) -> None:
    order(page)
    waves(page)
    turned(page)
    grid(page)
    globe(page)


def order(page: Page) -> None:
    words = SENTENCE.split()
    x = embed_words(words, width=WIDTH)
    page.heading("Without positions, a sentence is a bag of words")
    page.text(
        f"""Attention looks at what a token is, not at where it stands. Turn `{SENTENCE}` round, and every word gets
        the same vector as before; only the rows change places."""
    )
    turn = torch.arange(len(words) - 1, -1, -1)
    plain = attention(x, x, x)
    backwards = attention(x[turn], x[turn], x[turn])
    page.agree("The vectors of the sentence, and of the sentence read backwards", plain[turn], backwards)
    page.keep("plain", plain)
    position = Sinusoidal(WIDTH)
    with_order = attention(*[position(x)] * 3)
    with_order_backwards = attention(*[position(x[turn])] * 3)
    p = position(torch.zeros_like(x))
    on_itself = reference.weights(position(x), position(x)).diagonal()
    page.table(
        ["word", "without positions", "with positions", "its own place", "weight on itself"],
        [
            [
                word,
                float((plain[i] - backwards[-1 - i]).abs().max()),
                float((with_order[i] - with_order_backwards[-1 - i]).abs().max()),
                float((p[i] - p[-1 - i]).abs().max()),
                float(on_itself[i]),
            ]
            for i, word in enumerate(words)
        ],
        caption="The largest change of a number when the sentence is turned round, of the output and of the place that "
        "is added to the word; and how much a word looks at itself. (Embeddings are random.)",
    )
    page.keep("on itself", on_itself)
    page.keep("changes", (with_order[turn] - with_order_backwards).abs().amax(-1).flip(0))
    middle = len(words) // 2
    parts = {
        "its word, the other's word": (x[middle] @ x.T, x[middle] @ x[turn].T),
        "its word, the other's place": (x[middle] @ p.T, x[middle] @ p.T),
        "its place, the other's word": (p[middle] @ x.T, p[middle] @ x[turn].T),
        "its place, the other's place": (p[middle] @ p.T, p[middle] @ p.T),
    }
    changes = {name: float((one - other[turn]).abs().max()) / WIDTH**0.5 for name, (one, other) in parts.items()}
    page.keep("parts", changes)
    page.text(
        f"""Why does `{words[middle]}`, the word in the middle, barely move? Each output is a weighted mean of words and
        their places, and here a word gives itself nearly all of the weight (`the` shares it with the other `the`). So
        what moves is, above all, its own place; and the middle of a sentence that is turned round stays where it
        is.""",
        """That leaves its weights. Its score with another word is a sum of four products, and three of them stay: the
        words are the same, its own place is the same, and the product of two places depends on how far apart they are,
        not on which side. Only what its word has to say to a place changes:""",
    )
    page.table(
        ["product", "largest change"],
        [[name, change] for name, change in changes.items()],
        caption=f"The four parts of the scores of `{words[middle]}`, in the sentence and turned round.",
    )
    page.text(
        f"""That is not little for a score, but it moves only what the others get, {1 - float(on_itself[middle]):.4f} of
        the weight, and the output with it."""
    )


def waves(page: Page) -> None:
    page.heading("Waves that are added")
    page.text(
        """The first transformer adds sines and cosines of the position to the embedding: fast ones in front, slow ones
        behind. The product of two positions depends on how far apart they are, and near ones are, on the whole, more
        alike."""
    )
    steps = explain(torch.zeros(12, WIDTH, dtype=torch.float64), positions=Sinusoidal(WIDTH))
    table = steps["positions"]
    alike = steps["score"] / (WIDTH / 2)
    names = [str(i) for i in range(12)]
    page.heat(alike, names, digits=2, caption="How alike positions 0 to 11 are: p_i . p_j / 32, with 1 for the same.")
    page.keep("sinusoidal", table)
    page.keep("alike", alike)


def turned(page: Page) -> None:
    page.heading("Queries and keys that are turned")
    page.text(
        """Rotary positions turn pairs of numbers in q and k by an angle that grows with the position. A score then
        knows only the distance: move both words by the same amount, and it stays."""
    )
    generator = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 1, 1, 8, generator=generator, dtype=torch.float64)
    rotary = Rotary(8)
    rows = []
    for i, j in ((0, 3), (10, 13), (1000, 1003), (0, 4), (0, 0)):
        score = reference.scores(rotary(q, at=i), rotary(k, at=j))
        rows.append([f"query at {i}, key at {j}", j - i, float(score)])
    page.table(["where", "distance", "score"], rows, digits=6, caption="The same q and k at different places.")
    page.keep("rotary", {row[0]: row[2] for row in rows})
    page.keep("rotary inputs", (q, k))
    page.text(
        """ALiBi turns nothing: it takes a little off every score, the more the farther away the key, with a slope of
        its own for each head. Here the first of 8 heads, slope 1/2:"""
    )
    bias = alibi(8).to_dense(5, 5)[0]
    page.heat(bias, [str(i) for i in range(5)], digits=1, caption="What is added to the score of each query and key.")
    page.keep("alibi", bias)


def grid(page: Page) -> None:
    page.heading("Rows and columns")
    page.text(
        """A picture or a field is a grid, and its cells come one row after the other as a sequence. Neighbours in a
        column are then far apart in the sequence. A grid has positions of its own: waves of the row in one half of the
        channels, of the column in the other."""
    )
    rows, columns = 7, 9
    table = Grid(WIDTH, rows, columns)(torch.zeros(rows * columns, WIDTH, dtype=torch.float64))
    centre = (rows // 2) * columns + columns // 2
    alike = (reference.scores(table[centre : centre + 1], table, scale=2 / WIDTH)).view(rows, columns)
    page.heat(
        alike,
        [f"row {i}" for i in range(rows)],
        [f"{j}" for j in range(columns)],
        digits=2,
        caption="How alike each cell is to the one in the middle: it falls off upwards and sideways alike.",
    )
    page.keep("grid", alike)


def globe(page: Page) -> None:
    page.heading("Latitude and longitude")
    page.text(
        """On the globe a grid of rows and columns is wrong: the date line is no border, and at a pole all longitudes
        are one place. `LatLon` takes waves of the point on the sphere. Below, one point of a grid of 5 degrees looks
        at all others, with queries and keys made of positions alone."""
    )
    latitudes, longitudes = torch.arange(-85.0, 90.0, 5.0), torch.arange(-180.0, 180.0, 5.0)
    places = torch.cartesian_prod(latitudes, longitudes).double()  # [points, 2]
    table = LatLon(WIDTH, finest=30.0)(torch.zeros(len(places), WIDTH, dtype=torch.float64), at=places)
    here = int(((places - torch.tensor(PLACE)).abs().sum(-1)).argmin())
    weights = reference.weights(table[here : here + 1], table, scale=0.5)[0]
    page.keep("places", places)
    page.keep("table", table)
    page.keep("globe", weights)

    def at(latitude: float, longitude: float) -> float:
        return float(weights[int((places - torch.tensor((latitude, longitude))).abs().sum(-1).argmin())])

    page.table(
        ["place", "latitude", "longitude", "weight, in thousandths"],
        [
            ["itself", *PLACE, 1000 * at(*PLACE)],
            ["10 degrees west", 50.0, 165.0, 1000 * at(50, 165)],
            ["10 degrees east, across the date line", 50.0, -175.0, 1000 * at(50, -175)],
            ["20 degrees north", 70.0, 175.0, 1000 * at(70, 175)],
            ["45 degrees, across the pole", 85.0, -5.0, 1000 * at(85, -5)],
            ["the other side of the globe", -50.0, -5.0, 1000 * at(-50, -5)],
        ],
        digits=3,
        caption=f"Weights of the point at latitude {PLACE[0]:g}, longitude {PLACE[1]:g}, among {len(places):,} points.",
    )
    west, east = 1000 * at(50, 165), 1000 * at(50, -175)
    whole = {width: _beside(places, here, width) for width in (WIDTH, 6 * -(-WIDTH // 6))}
    page.keep("beside", whole)
    page.text(
        f"""10 degrees west and 10 degrees east are equally far, and yet {west:.3f} and {east:.3f}. The date line is not
        the reason: it is the number of channels. A wave takes six of them, the sine and the cosine of x, y and z; in
        {WIDTH} channels the fastest wave has lost the cosines of y and z. A sine alone does not ask how far apart two
        places are, but on which side of the axis they lie, and {PLACE[1]:g} degrees lies just beside it. With channels
        for whole waves the two are as good as equal:"""
    )
    page.table(
        ["channels", "10 degrees west", "10 degrees east", "they differ by"],
        [[width, a, b, f"{abs(a - b) / max(a, b):.1%}"] for width, (a, b) in whole.items()],
        caption="Weights in thousandths. What is left is the difference between x, y, z and the great circle.",
    )
    edge = torch.tensor([[0.0, -180.0], [0.0, 180.0], [90.0, 0.0], [90.0, 120.0]], dtype=torch.float64)
    ends = LatLon(WIDTH)(torch.zeros(4, WIDTH, dtype=torch.float64), at=edge)
    page.agree("Longitude -180 and 180", ends[0], ends[1])
    page.agree("The pole at longitude 0 and at longitude 120", ends[2], ends[3])

    page.picture(
        lambda: plots.on_globe(weights, places, query=PLACE, title="Where a point of the globe looks"),
        "The weights on the sphere, seen from above the point that looks.",
    )
    page.picture(
        lambda: plots.on_map(weights, places, query=PLACE, title="The same on a plain map"),
        "The same weights on plain longitudes and latitudes: what looks like two places is one.",
    )


def _beside(places: Tensor, here: int, width: int) -> tuple[float, float]:
    """The weights, in thousandths, of the places 10 degrees to the west and to the east of one."""
    table = LatLon(width, finest=30.0)(torch.zeros(len(places), width, dtype=torch.float64), at=places)
    weights = 1000 * reference.weights(table[here : here + 1], table, scale=0.5)[0]
    latitude, longitude = places[here].tolist()
    sides = [(latitude, (longitude + step + 180) % 360 - 180) for step in (-10, 10)]
    west, east = (float(weights[int((places - torch.tensor(side)).abs().sum(-1).argmin())]) for side in sides)
    return west, east
