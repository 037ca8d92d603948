"""Words that fill the prompt templates. Training and held-out lists share no entry."""

from __future__ import annotations


def _split(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.replace("\n", " ").split(",") if part.strip())


TRAIN_TOPICS = _split(
    """
    the water cycle, volcanoes, earthquakes, rainbows, the moon, the planets, comets, black holes, gravity, magnets,
    electricity, batteries, light bulbs, lightning, wind turbines, solar panels, coal mines, oil, steam engines,
    bicycles, trains, aeroplanes, submarines, rockets, satellites, bridges, skyscrapers, tunnels, dams, elevators,
    clocks, calendars, maps, compasses, telescopes, microscopes, cameras, radio, television, telephones, computers,
    the internet, search engines, email, passwords, computer viruses, robots, machine learning, neural networks,
    databases, spreadsheets, programming languages, open source software, video games, chess, board games, puzzles,
    card tricks, magic, juggling, painting, drawing, sculpture, photography, pottery, knitting, sewing, fashion,
    jewellery, perfume, architecture, gardens, roses, oak trees, cactuses, mushrooms, rice, wheat, potatoes,
    tomatoes, apples, oranges, chocolate, coffee, tea, honey, cheese, bread, pizza, soup, ice cream, salt, sugar,
    spices, vegetables, breakfast, picnics, restaurants, kitchens, recipes, baking, dieting, vitamins, sleep,
    dreams, memory, the brain, the heart, the lungs, bones, muscles, skin, teeth, eyes, ears, blood, viruses,
    bacteria, vaccines, antibiotics, hospitals, nurses, doctors, surgery, first aid, exercise, yoga, running,
    swimming, cycling, hiking, climbing, skiing, football, basketball, tennis, cricket, baseball, golf, boxing, the
    Olympic Games, marathons, dancing, ballet, music, pianos, guitars, violins, drums, opera, jazz, rock bands,
    songs, singing, theatre, films, comics, novels, poetry, fairy tales, libraries, newspapers, advertising,
    schools, teachers, homework, exams, universities, languages, grammar, handwriting, mathematics, fractions,
    percentages, geometry, probability, statistics, prime numbers, money, banks, taxes, inflation, insurance,
    savings, the stock market, small businesses, factories, supermarkets, farmers, fishing, forests, rivers, lakes,
    the ocean, coral reefs, islands, mountains, deserts, the Arctic, Antarctica, glaciers, beaches, caves,
    waterfalls, weather, snow, hurricanes, droughts, floods, climate change, recycling, plastic, pollution, clean
    water, endangered species, zoos, national parks, dogs, cats, horses, cows, sheep, pigs, chickens, rabbits, mice,
    squirrels, foxes, wolves, bears, lions, tigers, elephants, giraffes, monkeys, kangaroos, penguins, owls, eagles,
    parrots, ducks, frogs, snakes, turtles, crocodiles, sharks, whales, dolphins, octopuses, jellyfish, bees, ants,
    butterflies, spiders, dinosaurs, fossils, evolution, DNA, cells, photosynthesis, atoms, molecules, acids,
    metals, gold, iron, glass, paper, concrete, rubber, paint, fire, ice, sound, light, colours, shadows, mirrors,
    lenses, time, space travel, the sun, stars, galaxies, the big bang, ancient Egypt, ancient Greece, the Roman
    Empire, the Middle Ages, knights, castles, pirates, explorers, the Renaissance, the Industrial Revolution, the
    printing press, the telegraph, the steam ship, World War II, the Cold War, democracy, elections, parliaments,
    courts, laws, human rights, the police, fire fighters, the post office, museums, holidays, birthdays, weddings,
    friendship, families, kindness, courage, honesty, patience, anger, happiness, stress, shyness, leadership,
    teamwork, job interviews, public speaking, time management, remote work, meetings, travel, airports, hotels,
    camping, deserts at night, city life, villages, neighbours, moving house, cleaning, laundry, tools, furniture,
    houses, roofs, windows, doors, roads, traffic, electric cars, buses, motorcycles, ships, lighthouses, harbours,
    markets, festivals, fireworks, toys, dolls, kites, balloons, umbrellas, shoes, hats, pencils, backpacks
    """
)

HELD_OUT_TOPICS = _split(
    """
    tides, solar eclipses, geysers, fog, hot air balloons, sailing boats, vending machines, barcodes, thermometers,
    bicycles for two, windmills, lemonade, pancakes, cinnamon, beekeeping, hedgehogs, otters, seahorses, bats,
    camels, woodpeckers, the Silk Road, the Vikings, the Great Wall, samurai, origami, calligraphy, the harp, the
    circus, street art, chess clocks, budgets, mortgages, volunteering, apprenticeships, sign language, crosswords,
    allergies, asthma, jogging, sleepwalking, recursion, encryption, web browsers, sorting algorithms, compost,
    bamboo, dandelions, snowflakes, the northern lights
    """
)

TRAIN_NAMES = _split(
    """
    Anna, Ben, Carla, David, Emma, Frank, Grace, Henry, Isabel, Jack, Kate, Leo, Maria, Nick, Olivia, Paul, Quinn,
    Rosa, Sam, Tina, Victor, Wendy, Yusuf, Zoe, Amir, Bella, Chen, Diego, Elena, Farid, Hana, Ivan, Joy, Kofi, Lina,
    Marco, Nadia, Omar, Priya, Ravi, Sara, Tom, Uma, Lucy, Peter, Ruth
    """
)
HELD_OUT_NAMES = _split("Agnes, Boris, Celia, Dmitri, Edith, Felix, Gita, Hugo, Ines, Jonas, Klara, Liam")

TRAIN_THINGS = _split(
    """
    apples, pencils, marbles, books, stamps, cookies, tickets, flowers, eggs, oranges, balloons, cards, coins,
    stickers, bottles, chairs, shirts, toys, candles, cupcakes, shells, buttons, notebooks, pears, seeds, bricks,
    plates, lamps, boxes of tea, bags of rice
    """
)
HELD_OUT_THINGS = _split("peaches, ribbons, crayons, postcards, tulips, bagels, magnets, paper clips")

TRAIN_PLACES = _split(
    """
    Lisbon, Nairobi, Oslo, Toronto, Lima, Hanoi, Warsaw, Dublin, Athens, Seoul, Manchester, Geneva, Chicago,
    Melbourne, Cape Town, Bogota, Ankara, Vienna, Cairo, Mumbai, Osaka, Prague, Denver, Santiago, Glasgow,
    Marseille, Lagos, Karachi, Riga, Valencia
    """
)
HELD_OUT_PLACES = _split("Bergen, Tunis, Portland, Gdansk, Quito, Kyoto, Leeds, Porto")

TRAIN_ROLES = _split(
    """
    a ship's captain, a history teacher, a doctor, a grumpy chef, a detective, a tour guide, a football coach, a
    librarian, a shopkeeper, a space explorer, a king, a wise grandmother, a scientist, a poet, a news reporter, a
    gardener, a pirate, a travel agent, a software engineer, a lawyer, a robot, a talking cat, a medieval knight, a
    job interviewer, a museum guide
    """
)
HELD_OUT_ROLES = _split("a lighthouse keeper, a violin teacher, an astronaut, a baker, a judge, a mountain guide")
