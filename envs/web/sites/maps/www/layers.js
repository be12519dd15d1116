// In which colours the map is drawn, by layer.

export const LAYERS = {
  map: {
    ground: "#f2efe8",
    street: "#ffffff",
    edge: "#d8d2c4",
    water: "#a9d5ea",
    park: "#cbe6b8",
    text: "#6b6558",
    block: "#e9e4d8",
  },
  relief: {
    ground: "#e3ead5",
    street: "#fbf7ea",
    edge: "#b8c29b",
    water: "#8fc4dd",
    park: "#a4cf86",
    text: "#4d5a37",
    block: "#d3dfbf",
  },
  night: {
    ground: "#1f2a3a",
    street: "#3d4c63",
    edge: "#162030",
    water: "#12314a",
    park: "#25443a",
    text: "#aebccf",
    block: "#26344a",
  },
};
