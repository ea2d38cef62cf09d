"""Graphs, sets, kernels and rankings: rows that depend on one another because they are meant to."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, TensorDataset

from paceline import TrainModule

from ..programs import right
from ..tasks_text import generator, graph, series, table


class GraphModule(TrainModule):
    """One graph is the batch; masks say which nodes' groups are learned and which are held out."""

    def __init__(self):
        super().__init__()
        self.lr = 0.02

    def training_step(self, batch):
        logits = self(batch["x"], batch["edges"])
        learned = batch["learned"]
        return F.cross_entropy(logits[learned], batch["groups"][learned])

    def validation_step(self, batch):
        held_out = ~batch["learned"]
        logits = self(batch["x"], batch["edges"])[held_out]
        self.log("accuracy", (logits.argmax(1) == batch["groups"][held_out]).float().mean())

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.lr, weight_decay=5e-4)


def one_graph() -> DataLoader:
    x, edges, groups = graph()
    learned = torch.rand(len(x), generator=generator(1)) < 0.5
    whole = [{"x": x, "edges": edges, "groups": groups, "learned": learned}]
    return DataLoader(whole, batch_size=None)


@right(
    area="graph",
    source="https://arxiv.org/abs/1609.02907",
    debatable="validation reads the graph that is trained on, as transductive learning does",
)
def convolution_over_the_nodes_of_a_graph(trainer):
    """A GCN by a dense matrix: each row's output has its neighbours, held-out nodes among them."""

    class GCN(GraphModule):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(6, 16), nn.Linear(16, 3)

        def forward(self, x, edges):
            linked = torch.eye(len(x)).index_put(tuple(edges), torch.ones(()))
            scale = linked.sum(1).rsqrt()
            linked = scale[:, None] * linked * scale
            hidden = F.dropout(torch.relu(linked @ self.first(x)), 0.3, self.training)
            return linked @ self.second(hidden)

    trainer(max_epochs=40).fit(GCN(), one_graph(), one_graph())


@right(
    area="graph", debatable="validation reads the graph that is trained on, as transductive learning does"
)
def attention_over_edges_by_scatter(trainer):
    """Softmax over the edges that arrive at a node, with index_add: its sums run over rows."""

    class GAT(GraphModule):
        def __init__(self, width=16):
            super().__init__()
            self.inputs = nn.Linear(6, width)
            self.score = nn.Linear(2 * width, 1)
            self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, 3)

        def forward(self, x, edges):
            source, target = edges
            hidden = self.inputs(x)
            score = self.score(torch.cat([hidden[source], hidden[target]], 1))
            share = F.leaky_relu(score, 0.2).clamp(-8, 8).exp()
            total = torch.zeros(len(x), 1).index_add(0, target, share)
            found = torch.zeros_like(hidden).index_add(0, target, share * hidden[source])
            return self.out(F.elu(self.norm(hidden + found / total.clamp(min=1e-6))))

    trainer(max_epochs=30).fit(GAT(), one_graph(), one_graph())


@right(area="graph")
def small_graphs_joined_into_a_batch(trainer):
    """A collate function joins graphs; a batch has few rows of targets and many of nodes."""

    class Rings(Dataset):
        """Graphs of 5 to 9 nodes; the label is whether a ring is closed."""

        def __init__(self, count, seed):
            self.draws, self.graphs = generator(seed), []
            for _ in range(count):
                nodes = int(torch.randint(5, 10, (), generator=self.draws))
                closed = int(torch.randint(2, (), generator=self.draws))
                near = torch.arange(nodes)
                edges = torch.stack([near, (near + 1) % nodes])[:, : nodes - 1 + closed]
                x = torch.randn(nodes, 4, generator=self.draws) * 0.1
                self.graphs.append((x, torch.cat([edges, edges.flip(0)], 1), closed))

        def __len__(self):
            return len(self.graphs)

        def __getitem__(self, index):
            return self.graphs[index]

    def joined(samples):
        sizes = torch.tensor([len(x) for x, _, _ in samples])
        first = sizes.cumsum(0) - sizes
        edges = torch.cat([edge + begin for (_, edge, _), begin in zip(samples, first, strict=True)], 1)
        owner = torch.repeat_interleave(torch.arange(len(samples)), sizes)
        labels = torch.tensor([label for *_, label in samples])
        return torch.cat([x for x, *_ in samples]), edges, owner, labels

    class GIN(TrainModule):
        def __init__(self):
            super().__init__()
            self.inputs = nn.Linear(5, 24)
            self.layers = nn.ModuleList(
                nn.Sequential(nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 24)) for _ in range(2)
            )
            self.out = nn.Linear(24, 2)

        def forward(self, x, edges, owner):
            degree = torch.bincount(edges[1], minlength=len(x)).float()
            hidden = self.inputs(torch.cat([x, degree[:, None]], 1))
            for layer in self.layers:
                hidden = hidden + layer(hidden.index_add(0, edges[1], hidden[edges[0]]))
            pooled = hidden.new_zeros(int(owner.max()) + 1, 24).index_add(0, owner, hidden)
            return self.out(pooled / torch.bincount(owner)[:, None])

        def training_step(self, batch):
            return F.cross_entropy(self(*batch[:3]), batch[3])

        def validation_step(self, batch):
            right_ones = self(*batch[:3]).argmax(1) == batch[3]
            self.log("accuracy", right_ones.float().mean(), weight=len(right_ones))

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=5e-3)

    train = DataLoader(Rings(256, 0), 16, shuffle=True, collate_fn=joined)
    trainer(max_epochs=8).fit(GIN(), train, DataLoader(Rings(64, 1), 32, collate_fn=joined))


@right(area="graph")
def links_against_drawn_nodes(trainer):
    """Nodes are embedded, links are told from random pairs: half of each batch's labels are drawn."""

    class Links(TrainModule):
        def __init__(self, nodes=300):
            super().__init__()
            self.nodes = nn.Embedding(nodes, 8)
            nn.init.normal_(self.nodes.weight, std=0.3)
            self.bias = nn.Parameter(torch.zeros(()))

        def scores(self, pairs):
            return (self.nodes(pairs[:, 0]) * self.nodes(pairs[:, 1])).sum(1) + self.bias

        def step(self, batch):
            (pairs,) = batch
            others = torch.stack([pairs[:, 0], torch.randint(300, (len(pairs),))], 1)
            scores = torch.cat([self.scores(pairs), self.scores(others)])
            labels = torch.arange(2).repeat_interleave(len(pairs)).eq(0).float()
            return F.binary_cross_entropy_with_logits(scores, labels)

        def training_step(self, batch):
            return self.step(batch)

        def validation_step(self, batch):
            return self.step(batch)

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=0.02)

    links = graph()[1].T
    links = links[links[:, 0] < links[:, 1]]
    links = links[torch.randperm(len(links), generator=generator(2))]
    train, val = TensorDataset(links[: len(links) * 4 // 5]), TensorDataset(links[len(links) * 4 // 5 :])
    trainer(max_epochs=8).fit(Links(), DataLoader(train, 64, shuffle=True), DataLoader(val, 200))


@right(area="series", source="https://gaussianprocess.org/gpml/chapters/RW2.pdf")
def gaussian_process_of_pairwise_differences(trainer):
    """The kernel is of (N, 1) - (1, N) differences, and the loss one number of the whole batch."""

    class Process(TrainModule):
        def __init__(self):
            super().__init__()
            self.scale, self.width, self.noise = (nn.Parameter(torch.zeros(())) for _ in range(3))

        def kernel(self, a, b):
            return self.scale.exp() * torch.exp(-0.5 * ((a[:, None] - b[None]) / self.width.exp()) ** 2)

        def training_step(self, batch):
            x, y = batch
            covariance = self.kernel(x, x) + (self.noise.exp() + 1e-4) * torch.eye(len(x))
            distribution = torch.distributions.MultivariateNormal(torch.zeros_like(y), covariance)
            self.seen = (x, y)
            return -distribution.log_prob(y) / len(y)

        def validation_step(self, batch):
            x, y = self.seen if hasattr(self, "seen") else batch
            covariance = self.kernel(x, x) + (self.noise.exp() + 1e-4) * torch.eye(len(x))
            found = self.kernel(batch[0], x) @ torch.linalg.solve(covariance, y)
            self.log("rmse", (found - batch[1]).square().mean().sqrt())

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=0.05)

    x, y = torch.arange(160) / 12.0, series(160)
    held_out = torch.arange(160) % 4 == 3
    train, val = TensorDataset(x[~held_out], y[~held_out]), TensorDataset(x[held_out], y[held_out])
    trainer(max_epochs=25).fit(Process(), DataLoader(train, 120), DataLoader(val, 40))


@right(area="table", source="https://icml.cc/2015/wp-content/uploads/2015/06/icml_ranking.pdf")
def ranking_by_all_pairs_of_a_batch(trainer):
    """RankNet: scores of (N, 1) - (1, N), against which of two rows has the greater value."""

    class RankNet(TrainModule):
        def __init__(self):
            super().__init__()
            self.score = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))

        def pairs(self, batch):
            x, y = batch
            score = self.score(x)  # (N, 1)
            higher = (y[:, None] > y[None]).float()
            return (score - score.T), higher, ~torch.eye(len(y), dtype=torch.bool)

        def training_step(self, batch):
            difference, higher, other = self.pairs(batch)
            return F.binary_cross_entropy_with_logits(difference[other], higher[other])

        def validation_step(self, batch):
            difference, higher, other = self.pairs(batch)
            self.log("concordance", ((difference > 0) == higher.bool())[other].float().mean())

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=0.01)

    x, y = table(700)
    train, val = TensorDataset(x[:600], y[:600]), TensorDataset(x[600:], y[600:])
    trainer(max_epochs=4).fit(RankNet(), DataLoader(train, 40, shuffle=True), DataLoader(val, 100))


@right(area="table", source="https://arxiv.org/abs/1810.00825")
def sets_whose_members_attend_to_each_other(trainer):
    """A set transformer with (members, batch, width): the members are the first axis."""

    class Sets(TrainModule):
        def __init__(self):
            super().__init__()
            self.inputs = nn.Linear(2, 32)
            self.encoder = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0)  # batch second
            self.query = nn.Parameter(torch.randn(1, 1, 32))
            self.pool = nn.MultiheadAttention(32, 4)
            self.out = nn.Linear(32, 1)

        def forward(self, sets):
            members = self.encoder(self.inputs(sets.transpose(0, 1)))
            pooled, _ = self.pool(self.query.expand(-1, len(sets), -1), members, members)
            return self.out(pooled[0])[:, 0]

        def training_step(self, batch):
            return F.l1_loss(self(batch[0]), batch[1])

        def validation_step(self, batch):
            self.log("mae", F.l1_loss(self(batch[0]), batch[1]))

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=2e-3)

    sets = torch.randn(600, 10, 2, generator=generator(3))
    y = sets[..., 0].amax(1) - sets[..., 1].mean(1)
    train, val = TensorDataset(sets[:500], y[:500]), TensorDataset(sets[500:], y[500:])
    trainer(max_epochs=4).fit(Sets(), DataLoader(train, 25, shuffle=True), DataLoader(val, 100))


@right(area="table", source="https://arxiv.org/abs/1701.06538")
def experts_of_which_each_row_takes_one(trainer):
    """A gate sends each row to one of four experts, and some get few rows in a batch."""

    class Experts(TrainModule):
        def __init__(self):
            super().__init__()
            self.gate = nn.Linear(8, 4)
            self.experts = nn.ModuleList(
                nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)) for _ in range(4)
            )

        def forward(self, x):
            shares = self.gate(x).softmax(-1)
            share, chosen = shares.max(-1)
            found = x.new_zeros(len(x))
            for index, expert in enumerate(self.experts):
                rows = (chosen == index).nonzero()[:, 0]
                found = found.index_add(0, rows, share[rows] * expert(x[rows])[:, 0])
            even = 4 * (shares.mean(0) * F.one_hot(chosen, 4).float().mean(0)).sum()
            return found, even

        def training_step(self, batch):
            found, even = self(batch[0])
            return F.mse_loss(found, batch[1]) + 0.01 * even

        def validation_step(self, batch):
            self.log("mse", F.mse_loss(self(batch[0])[0], batch[1]))

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=0.01)

    x, y = table(800)
    train, val = TensorDataset(x[:700], y[:700]), TensorDataset(x[700:], y[700:])
    trainer(max_epochs=5).fit(Experts(), DataLoader(train, 64, shuffle=True), DataLoader(val, 100))


@right(area="table")
def places_as_sines_of_fixed_frequencies(trainer):
    """A field of one dimension: a place becomes sines of frequencies that are drawn once."""

    class Field(TrainModule):
        def __init__(self):
            super().__init__()
            self.register_buffer("waves", torch.randn(1, 32, generator=generator(1)) * 2 * math.pi * 3)
            self.net = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1))

        def forward(self, place):
            angle = place @ self.waves
            return self.net(torch.cat([angle.sin(), angle.cos()], 1))

        def training_step(self, batch):
            return F.mse_loss(self(batch[0]), batch[1])

        def validation_step(self, batch):
            self.log("psnr", -10 * F.mse_loss(self(batch[0]), batch[1]).log10())

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=5e-3)

    place = torch.linspace(0, 1, 601)[:, None]
    wave = torch.sin(12 * math.pi * place.square())
    train, val = TensorDataset(place[::2], wave[::2]), TensorDataset(place[1::2], wave[1::2])
    trainer(max_epochs=8).fit(Field(), DataLoader(train, 43, shuffle=True), DataLoader(val, 300))
