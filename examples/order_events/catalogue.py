"""The shop of the order events: its goods, customers and carriers."""

from __future__ import annotations

from typing import Final, NamedTuple


class City(NamedTuple):
    name: str
    country: str
    region: str
    currency: str
    weight: int


class Product(NamedTuple):
    """`price_cents` is the price in EUR cents; other currencies follow by `RATES`."""

    sku: str
    name: str
    price_cents: int
    weight: int


CITIES: Final = (
    City("Berlin", "DE", "eu-central", "EUR", 18),
    City("Hamburg", "DE", "eu-central", "EUR", 10),
    City("Munich", "DE", "eu-central", "EUR", 11),
    City("Vienna", "AT", "eu-central", "EUR", 7),
    City("Zurich", "CH", "eu-central", "CHF", 5),
    City("Warsaw", "PL", "eu-east", "PLN", 8),
    City("Kraków", "PL", "eu-east", "PLN", 4),
    City("Paris", "FR", "eu-west", "EUR", 12),
    City("Lyon", "FR", "eu-west", "EUR", 4),
    City("London", "GB", "eu-west", "GBP", 13),
    City("Stockholm", "SE", "eu-north", "SEK", 5),
    City("Malmö", "SE", "eu-north", "SEK", 3),
)

# Units of the currency for one EUR, in hundredths: whole numbers keep every platform's cents equal.
RATES: Final = {"EUR": 100, "CHF": 95, "GBP": 86, "PLN": 430, "SEK": 1130}

TIERS: Final = (("standard", 70), ("silver", 19), ("gold", 8), ("platinum", 3))

PRODUCTS: Final = (
    Product("TEA-ASSAM-250", "Assam tea, 250 g", 890, 14),
    Product("TEA-SENCHA-100", "Sencha tea, 100 g", 1240, 9),
    Product("COF-ESPR-1000", "Espresso beans, 1 kg", 2190, 16),
    Product("COF-FILT-500", "Filter coffee, 500 g", 1090, 13),
    Product("MUG-STONE-BL", "Stoneware mug, blue", 1450, 10),
    Product("MUG-STONE-GR", "Stoneware mug, grey", 1450, 9),
    Product("POT-GLASS-12", "Glass teapot, 1.2 l", 3490, 6),
    Product("KET-GOOSE-10", "Gooseneck kettle, 1 l", 7900, 4),
    Product("GRN-HAND-01", "Hand grinder", 5900, 5),
    Product("GRN-ELEC-02", "Electric grinder", 14900, 2),
    Product("FLT-PAPER-100", "Paper filters, 100 pieces", 550, 15),
    Product("SCL-BREW-01", "Brewing scale", 4200, 4),
    Product("CHO-DARK-100", "Dark chocolate, 100 g", 420, 18),
    Product("HON-LIND-500", "Linden honey, 500 g", 980, 8),
    Product("MAC-ESPR-PRO", "Espresso machine", 64900, 1),
)

PAYMENT_METHODS: Final = (("card", 46), ("paypal", 30), ("invoice", 16), ("transfer", 8))
CARRIERS: Final = (("DHL", 45), ("DPD", 25), ("UPS", 18), ("GLS", 12))
CANCEL_REASONS: Final = (
    ("changed mind", 40),
    ("payment failed", 35),
    ("ordered twice", 15),
    ("out of stock", 10),
)
REFUND_REASONS: Final = (("damaged", 35), ("not as described", 25), ("returned", 40))

WAREHOUSES: Final = {
    "eu-central": "LEJ1",
    "eu-east": "WRO2",
    "eu-west": "LIL1",
    "eu-north": "GOT1",
}

# How many of a day's orders fall into each hour, UTC: quiet nights, lunch, and the evening.
ORDERS_BY_HOUR: Final = (
    *(4, 2, 1, 1, 1, 2),
    *(6, 12, 20, 26, 29, 33),
    *(36, 32, 28, 27, 29, 34),
    *(43, 52, 55, 46, 28, 12),
)
# Monday to Sunday.
ORDERS_BY_WEEKDAY: Final = (16, 14, 13, 13, 12, 14, 18)
