Promise.all([...document.images].map((image) => image.decode())).then(() => null)
