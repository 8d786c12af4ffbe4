// Pays an order as a program does that uses Stripe's SDK for Node, and says what
// it got to see. The SDK is left as it comes, but for where its API is, and that
// it reports nothing of itself.
//
//	node pay.js <url> <order> <amount> <calls at once> [<key>]
'use strict';

const Stripe = require('stripe');

const [url, order, amount, calls, key] = process.argv.slice(2);
const { hostname, port, protocol } = new URL(url);
const stripe = new Stripe('sk_test_123', {
  host: hostname,
  port,
  protocol: protocol.replace(':', ''),
  telemetry: false,
});

async function pay() {
  try {
    const intent = await stripe.paymentIntents.create(
      { amount: Number(amount), currency: 'eur', description: order },
      key ? { idempotencyKey: key } : {},
    );
    // What the gateway says without an error that the SDK knows ends up here.
    return { id: intent.id, code: intent.code, status: intent.lastResponse.statusCode, ...from(intent.lastResponse.headers) };
  } catch (err) {
    return { error: err.type || err.name, status: err.statusCode, code: err.code, message: err.message, ...from(err.headers) };
  }
}

function from(headers = {}) {
  return { replayed: headers['idempotent-replayed'] === 'true', job: headers['idempotency-job'] };
}

Promise.all(Array.from({ length: Number(calls) }, pay)).then((seen) => {
  // The SDK leaves the answers unread after which it tries again. Their connections
  // would keep the program from ending until they time out.
  process.stdout.write(JSON.stringify(seen), () => process.exit());
});
